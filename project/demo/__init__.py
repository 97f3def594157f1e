"""What `manage.py demo` seeds, shows and adds up."""
