"""What the kernel lets a process that runs user code do. Standard library only.

Linux offers several layers, none of which is available everywhere, and each of which closes other
paths: seccomp refuses system calls (processes, sockets, signals, creation of files), Landlock
refuses files, the network and signals, a change of user or the loss of capabilities takes root's
rights away, and limits bound the use of resources. `probe` finds out what this machine has,
`confinement` applies it to the current process, for good.

    plan = probe.confinement_plan(...)      # once, in the parent; raises SandboxUnavailable
    log.info(plan.report)
    confinement.confine(plan, uid)          # in each child, before it sees any user code
"""
