"""Live jobs: how they are begun, followed, watched and ended, on which runner."""
