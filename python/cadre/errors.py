"""The exceptions of the package."""


class CadreError(RuntimeError):
    """The coordinator has refused a request, or a group cannot continue; the message has the reason."""


class RunEnded(Exception):
    """The run has reached its end; the model has its last version.

    The context manager that cadre.attach returns ends the training loop with this exception, and
    handles it: the program continues after the `with` block.
    """


class Left(Exception):
    """The group has left its run on request, after it has adopted a version. Handled like RunEnded."""
