"""Tokens of Microsoft Entra ID, for hubs and for stores.

entra_tokens.py        tokens of one scope: kept while they last, and renewed in time
token_credentials.py   the credential that an address or option names, made in the process that uses it
fabric.py              tokens of a Microsoft Fabric notebook, as a credential
"""
