"""Load for any server that speaks the OpenAI API, and what it did to the answers' times."""
