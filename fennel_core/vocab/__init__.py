"""The words every room shares: ids, time, data types, schemas, positions and keys. Pure values;
nothing here touches the world.
"""
