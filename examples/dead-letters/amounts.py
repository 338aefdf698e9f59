import re


def cents(amount: str) -> int:
    """The amount in cents: 1250 for "12.50"."""
    if not re.fullmatch(r"\d+\.\d\d", amount):
        raise ValueError(f"the amount {amount!r} is not like 12.50")
    return int(amount.replace(".", ""))
