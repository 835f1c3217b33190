"""A plugin of pytest, loaded before all others: what takes long to import and no test needs.

nbval imports jsonschema, and that a grammar of international addresses for formats that no schema of notebooks names:
1.7 of the 1.9 CPU seconds that this takes, in each process that runs tests.
"""

import sys

sys.modules.setdefault("rfc3987_syntax", None)  # jsonschema then does as where it is not installed
