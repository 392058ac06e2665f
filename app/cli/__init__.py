"""The command line behind launch.py: one file a command. Nothing heavy is imported before a command needs it."""
