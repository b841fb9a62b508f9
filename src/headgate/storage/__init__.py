"""Durable files: where checkpoints live, how they become complete, and when their files may go.

objects      what a store must do; local.py, remote.py and faults.py do it
layout       every path
handles      where the bytes of a state are: inline, in a file, or in a file an earlier checkpoint wrote
manifest     what `_metadata` says
writer       a subtask's side of a checkpoint; reader gives the bytes back, verified
checkpoints  publish, load, verify, discard
log          who may complete a checkpoint, and its commit number
shared       which shared files are still in use
gc           what nobody needs any more
"""
