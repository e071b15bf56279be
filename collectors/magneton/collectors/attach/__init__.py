"""Recording unmodified programs: a command runs once per capture, with a recorder inside the process.

The launcher (``launch``) puts one folder on ``PYTHONPATH``. Python runs the ``sitecustomize`` in this folder at its start. It first
runs the ``sitecustomize`` that it hides, if there is one. Then it waits until torch is imported and follows the steps of the program. Commands come from the user's command line, never from a recording.
"""
