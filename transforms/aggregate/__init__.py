"""From readings to rows of record: encode, cells, collect, panes, release; rosters, discovery and transition counts."""
