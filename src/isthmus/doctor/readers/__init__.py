"""Text -> facts, one file a family of tools. Pure: a reader sees one document and knows no threshold."""
