"""Files that isthmus shares with other tools, as pure functions from our records to text and back."""
