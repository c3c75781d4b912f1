"""Hand a plan over to the engines people have: per region, files that run unedited, and what to do with them in order.

`sites` is what only the user knows (names, addresses, folders), `request` all documents together, `checks` what must hold among
them, `targets` who makes the pieces of a bundle, `folder` writes them whole or not at all and checks what was written.
"""
