"""Print the minutes that windows.py has written: `python show_minutes.py`."""

import pyarrow.dataset as ds

minutes = ds.dataset("data/minutes").to_table()
for row in minutes.sort_by([("minute", "ascending"), ("site", "ascending")]).to_pylist():
    print(f"{row['minute']:%H:%M}  {row['site']:8}  readings={row['readings']}  warmest={row['warmest']}")
