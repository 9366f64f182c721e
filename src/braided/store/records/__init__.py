"""Records: the typed fields of a key as bytes, in the version of now and in earlier ones.

A record is made and read without knowing where it lies. Of `store` it may use `durable` alone.
"""
