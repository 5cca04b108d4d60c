"""What makes a window complete: punctuation of the source, and sequence numbers of what it sent.

Punctuation is that of Tucker, Maier, Sheard and Fegaras, "Exploiting punctuation semantics in continuous data streams"
(TKDE 2003).
"""
