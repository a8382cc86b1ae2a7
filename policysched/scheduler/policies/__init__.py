"""Active policies: reload, samples they wait for, outages, and the values they keep."""
