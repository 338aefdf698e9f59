"""Everything that hubline asks of Spark's Java objects, for which PySpark has no public way.

No other module touches py4j or an attribute of PySpark's that begins with `_j`. Functions here take PySpark's objects
and give plain Python values, so that a new version of Spark is met in this folder alone.
"""
