"""One module a version, in order; a module that was ever shipped is never changed."""
