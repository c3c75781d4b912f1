"""The reports: results and plans as terminal tables and as self-contained HTML pages.

Everything shown is read from the documents (`results.json`, `plan.yaml`); nothing here measures or predicts.
Charts are inline SVG coloured by the page's style sheet, so that one file serves light and dark, desk and
phone. jinja2 (the extra `report`) is needed, and imported, only where a page is written.
"""

from isthmus.report.trial_page import write_trial_page
from isthmus.report.trial_table import trial_table

__all__ = ["trial_table", "write_trial_page"]
