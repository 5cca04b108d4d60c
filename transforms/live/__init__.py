"""The live reader: feeds that never end, the clock of each part, and what a runner keeps of them."""
