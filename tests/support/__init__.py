"""What tests share; fixtures are in conftest.py."""
