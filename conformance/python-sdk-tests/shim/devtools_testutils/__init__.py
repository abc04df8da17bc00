"""Stands in for the Azure SDK's unpublished test tools, as far as the tests' configuration imports them."""
