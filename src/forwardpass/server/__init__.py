"""The server: the OpenAI API and a few more routes over the models of one process."""
