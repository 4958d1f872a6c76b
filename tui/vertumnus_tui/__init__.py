"""The console of Vertumnus: a process of its own that follows a node's admin feed.

link or recording ──frames──► model ──► pages: lines of styled text ──► widgets that only render
"""
