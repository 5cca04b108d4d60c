"""What makes a window complete.

``punctuation``
    a source's statements about windows that it has read completely (Tucker, Maier, Sheard and Fegaras, "Exploiting
    punctuation semantics in continuous data streams", TKDE 2003), and numbers of its batches, by which a window shows
    that it lacks none
"""
