"""What Spark wraps is unwrapped to the line that says what is wrong. The texts are Spark's own, shortened."""

from __future__ import annotations

import pytest

from hubline.pipeline.spark_errors import LENGTH_MAX, summarize_failure, summarize_spark_error

NOT_SET = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call last):
  File "/work/src/hubline/spark/options.py", line 247, in parsed
    raise ConfigError(message)
hubline.errors.ConfigError: the option hub: the environment variable 'RAW' is not set. Set it, or correct the name
 SQLSTATE: 38000"""

NOT_INSTALLED = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: \
Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/serializers.py", line 459, in loads
    return cloudpickle.loads(obj, encoding=encoding)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ModuleNotFoundError: No module named 'hubline'
 SQLSTATE: 38000"""

IN_A_TASK_OF_A_BATCH = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function: \
Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/sql/utils.py", line 161, in call
    raise e
pyspark.errors.exceptions.captured.PythonException:
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/work/src/hubline/sinks/sql_sink/sink.py", line 770, in summarize_spark_error
    raise SinkError(text)
hubline.errors.SinkError: the table has no column 'bytes'

 SQLSTATE: 39000
=== Streaming Query ===
Identifier: life.rows [id = 1, runId = 2]
Logical Plan:
WriteToMicroBatchDataSource eventhubs"""

IN_A_GROUP = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker:   + Exception Group \
Traceback (most recent call last):
  |   File "/work/src/hubline/spark/tasks/range_reader.py", line 12, in read
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/work/src/hubline/spark/tasks/range_reader.py", line 34, in look
    | hubline.errors.HubUnavailable: hub raw at 127.0.0.1:1 cannot be reached
    +------------------------------------"""

IN_JAVA = """Job aborted due to stage failure: Task 0 in stage 2.0 failed 4 times, most recent failure: Lost task \
0.3 in stage 2.0 (TID 8) (localhost executor driver): java.io.IOException: Mkdirs failed to create file:/archive
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:774)

Driver stacktrace:
=== Streaming Query ==="""

FROM_JAVA = """An error occurred while calling o515.start.
: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: deltaa. Make \
sure the provider name is correct. SQLSTATE: 42K02
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.dataSourceNotFoundError(QueryExecutionErrors.scala:770)
Caused by: java.lang.ClassNotFoundException: deltaa.DefaultSource"""

OF_A_COLUMN = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `bodi` cannot \
be resolved. Did you mean one of the following? [`body`, `offset`]. SQLSTATE: 42703;
'Project ['bodi]
+- ~StreamingRelationV2 [hub=local:/data/raw]"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            NOT_SET,
            "ConfigError: the option hub: the environment variable 'RAW' is not set. Set it, or correct the name",
        ),
        (IN_A_TASK_OF_A_BATCH, "SinkError: the table has no column 'bytes'"),
        (IN_A_GROUP, "HubUnavailable: hub raw at 127.0.0.1:1 cannot be reached"),
        (IN_JAVA, "IOException: Mkdirs failed to create file:/archive"),
        (FROM_JAVA, "Failed to find the data source: deltaa. Make sure the provider name is correct"),
        (
            OF_A_COLUMN,
            "A column, variable, or function parameter with name `bodi` cannot be resolved. "
            "Did you mean one of the following? [`body`, `offset`]",
        ),
        ("Traceback (most recent call last):\n  File x\nAssertionError\n SQLSTATE: 38000", "AssertionError"),
        ("Traceback (most recent call last):\n  cut short", "Traceback (most recent call last)"),
        ("no hub there", "no hub there"),
        ("", "ValueError"),
    ],
)
def test_the_line_that_says_what_is_wrong_is_found(text: str, says: str) -> None:
    assert summarize_spark_error(ValueError(text)) == says


IN_A_HANDLER = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function: \
Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/sql/utils.py", line 161, in call
    raise e
pyspark.errors.exceptions.captured.PythonException:
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1900, in main
    process()
  File "/opt/venv/lib/python3.12/site-packages/hubline/pipeline/handlers.py", line 46, in _rows
    given = self.function(events)
            ^^^^^^^^^^^^^^^^^^^^^
  File "/app/telemetry.py", line 14, in sizes
    return pa.table({"bytes": parse(events["body"])})
  File "/app/telemetry.py", line 9, in parse
    return pa.array([int(each) for each in bodies.to_pylist()])
  File "/opt/venv/lib/python3.12/site-packages/numbers.py", line 2, in to_int
ValueError: invalid literal for int(): SharedAccessKey=pLaNtEd"""


def test_failure_begins_with_the_users_own_innermost_line() -> None:
    said = summarize_failure(ValueError(IN_A_HANDLER))
    assert said == "/app/telemetry.py:9: ValueError: invalid literal for int(): ***"


def test_failure_that_never_passed_the_users_code_has_no_line() -> None:
    assert summarize_failure(ValueError(IN_JAVA)) == summarize_spark_error(ValueError(IN_JAVA))
    assert summarize_failure(ValueError(NOT_INSTALLED)) == summarize_spark_error(ValueError(NOT_INSTALLED))


def test_python_without_hubline_is_reported_with_what_to_do() -> None:
    assert summarize_spark_error(ValueError(NOT_INSTALLED)).startswith(
        "hubline is not installed for the Python that Spark runs"
    )


@pytest.mark.parametrize(
    "secret", ["SharedAccessKey=pLaNtEdSeCrEt", "postgresql://me:pLaNtEdSeCrEt@db/x", "password='pLaNtEdSeCrEt'"]
)
@pytest.mark.parametrize("text", ["x {} y", "Traceback (most recent call last):\n  File x\nOSError: no {}\n"])
def test_no_secret_is_repeated(text: str, secret: str) -> None:
    assert "pLaNtEd" not in summarize_spark_error(ValueError(text.format(secret)))
    assert summarize_spark_error(ValueError("x SharedAccessKey=abc y\nz")) == "x *** y"


def test_what_is_long_is_cut() -> None:
    assert len(summarize_spark_error(ValueError("x" * 5000))) == LENGTH_MAX
