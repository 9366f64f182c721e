"""The command `braided`: one module for each thing that it does.

What a subcommand needs is imported when it runs, so that help comes at once. It uses
Braided as a user does where it can, may look into state and control besides, and is imported by
nobody.
"""
