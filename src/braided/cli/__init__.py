"""The command `braided`: one module for each thing that it does.

What a subcommand needs is imported when it runs, so that help comes at once. It may use every
package, and nothing imports it.
"""
