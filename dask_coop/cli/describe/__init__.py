"""The command describe: read files of many formats, summarise and draw their arrays."""
