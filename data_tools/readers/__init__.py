"""Readers: one log format each, from files to Transitions.

A reader is a module with two functions. `claims(folder, folders, files)` says whether a folder (and what lies below it)
is one search in this format; `read(roots, options)` returns one `Search`. Reading never executes, never writes and
never stops at a bad file: what could not be read is in `Search.problems`.

`finch.py` reads tables rather than folders of logs, and may meet more rows than fit into memory: it claims files, and
`rows` yields one transition after another.
"""
