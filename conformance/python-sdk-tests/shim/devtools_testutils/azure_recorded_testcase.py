"""The one name the tests' configuration imports from here."""

import os


def get_credential(is_async=False):  # noqa: ARG001 - the name and parameter are the caller's
    """The account key: the emulator has no Entra directory to ask for a token."""
    return os.environ["ACCOUNT_KEY"]
