"""Recording programs as they are: a command is run once per capture, and watched from inside without being changed.

The launcher (``launch``) puts one folder on ``PYTHONPATH``; the ``sitecustomize`` in it (chained to any it shadows) waits
for torch and then follows the program's steps. Commands come from the user's command line, never from a recording.
"""
