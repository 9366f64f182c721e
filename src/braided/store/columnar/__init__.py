"""The state of columnar operators: fields of Arrow types, records of many keys at a time.

A record is made and read without knowing where it lies. Of `store` it may use `durable`, the
conversions of `store/slots/key_codec.py` and the numbering of `store/records/evolution.py`.
"""
