import logging

import pytest

from hubline.errors import PositionInvalid
from hubline.hubs.data_loss import accept_data_loss, sequence_after_data_loss
from hubline.model.positions import OnDataLoss

EXPIRED = PositionInvalid("it is gone", partition="3", reason="expired", begin_sequence=10, last_sequence=19)


class TestAcceptDataLoss:
    def test_by_default_it_is_an_error(self) -> None:
        with pytest.raises(PositionInvalid) as caught:
            accept_data_loss(EXPIRED, "fail")

        assert caught.value is EXPIRED

    def test_what_is_accepted_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.ERROR, "hubline.hubs"):
            accept_data_loss(EXPIRED, "latest")

        assert caplog.messages == ["data_loss partition=3 reason=expired on_data_loss=latest it is gone"]


class TestSequenceAfterDataLoss:
    @pytest.mark.parametrize(("choice", "sequence"), [("earliest", 10), ("latest", 20)])
    def test_reading_goes_on_where_the_user_chose(self, choice: OnDataLoss, sequence: int) -> None:
        assert sequence_after_data_loss(EXPIRED, choice) == sequence
