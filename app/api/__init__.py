"""The model behind an OpenAI-compatible endpoint, in the same process and on the same engine as the page.

gate        who may use it
schema      what a request may say
conversation, media
            its messages as the engine takes them; its pictures and clips as files of their own folder
body, sources
            how much of it is read, and where its media may come from
files, filestore
            media that were uploaded before
job         its turn on the engine, in a thread of its own
reply       what is sent back, whole or piece by piece
routes      the addresses
metrics, spans
            what is counted and traced, of the page's runs too
"""
