"""Durable files: where checkpoints are, how they become complete, and when their files are deleted.

objects      the interface of a store; local, cloud and webhdfs implement it, remote picks one by the scheme of a path
layout       every path
handles      where the bytes of a state are: inline, in a file, or in a file an earlier checkpoint wrote
manifest     the content of `_metadata`
writer       writes the state of a subtask; reader reads it, verified
checkpoints  publish, load, verify, discard
log          which driver may complete a checkpoint, and its commit number
shared       which shared files are still in use
gc           what no checkpoint needs any more
"""
