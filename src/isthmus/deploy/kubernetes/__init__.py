"""`isthmus deploy --to volcano|jobset|trainjob|kueue`: a region as objects of a Kubernetes cluster, one cluster a region.

Pods use their node's network: members.json names the address of every rank, and other regions reach no pod network. Which pod is
which node follows from the node it lands on (`spec.nodeName`, nodes.txt), never from the order that a scheduler gives, and ranks
are numbered by `isthmus run`: no engine's own rank variables are used, since they end at the region's edge.

`pod` is the pod that all share, `region` the objects beside it, `manifest` their text, `names` what Kubernetes takes as a name;
`volcano`, `jobset`, `trainjob` and `kueue` are the targets. `fields` and `fields.yaml` hold what we know of the engines' schemas,
`rules` what they check beyond them.
"""
