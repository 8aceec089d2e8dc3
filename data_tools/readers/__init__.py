"""Readers: one log format each, from files to Transitions.

A reader is a module with four functions. `claims(folder, folders, files)` says whether a folder (and what lies below
it) is one search in this format, `is_log(path)` whether a file is; `ids_of(root)` gives its program ids, for runs that
were resumed elsewhere; `read(roots, options)` returns one `Search`. Reading never executes, never writes and never stops
at a bad file: what could not be read is in `Search.problems`. `data_tools/find.py` lists the readers.

`finch.py` reads tables rather than folders of logs, and may meet more rows than fit into memory: it claims files, and
`rows` yields one transition after another.
"""
