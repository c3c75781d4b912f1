"""Follow a run: `followed` reads the metrics files its ranks write, `scraped` asks their exporters, `tables` shows that."""

from isthmus.watch.followed import RankFollower, RegionFollower
from isthmus.watch.scraped import LinkNow, Reading, RegionNow, Scraper, links_now, parse_addresses, read_metrics, regions_now
from isthmus.watch.tables import watch_tables

__all__ = [
    "LinkNow", "RankFollower", "Reading", "RegionFollower", "RegionNow", "Scraper", "links_now", "parse_addresses",
    "read_metrics", "regions_now", "watch_tables",
]  # fmt: skip
