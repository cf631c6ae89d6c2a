"""Chat templates of tests: what those of published checkpoints do with tools, in few lines, with the special tokens of
the host double and of the byte tokenizer."""

from __future__ import annotations

QWEN = """{% if tools %}<|begin|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
For each function call, return a json object within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|end|>{% endif %}
{% for message in messages %}{% if message.role == 'assistant' %}<|begin|>assistant
{{ message.content }}{% for tool_call in message.tool_calls %}{% set tool_call = tool_call.function %}

<tool_call>
{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>{% elif message.role == 'tool' %}<|begin|>user
<tool_response>
{{ message.content }}
</tool_response><|end|>{% elif message.role == 'user' or not tools %}<|begin|>{{ message.role }}
{{ message.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|begin|>assistant
{% endif %}"""

LLAMA = """{% if tools is not none %}<|begin|>system
Environment: ipython
{% for t in tools %}{{ t | tojson(indent=4) }}

{% endfor %}<|end|>{% endif %}{% for message in messages %}{% if 'tool_calls' in message %}\
{% if message.tool_calls | length != 1 %}{{ raise_exception("This model only supports single tool-calls at once!") }}\
{% endif %}{% set tool_call = message.tool_calls[0].function %}<|begin|>assistant
{"name": "{{ tool_call.name }}", "parameters": {{ tool_call.arguments | tojson }}}<|end|>\
{% elif message.role == 'tool' %}<|begin|>ipython
{{ message.content | tojson }}<|end|>{% else %}<|begin|>{{ message.role }}
{{ message.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|begin|>assistant
{% endif %}"""

MISTRAL = """{{ '<|begin|>' }}{% set asked = messages | selectattr("role", "equalto", "user") | list %}\
{% for message in messages %}{% if message.role == 'user' %}\
{% if message == asked[-1] and tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}\
[INST] {{ message.content }}[/INST]{% elif message.tool_calls is defined and message.tool_calls is not none %}\
[TOOL_CALLS] [{% for tool_call in message.tool_calls %}{% set out = tool_call.function | tojson %}{{ out[:-1] }}\
{% if tool_call.id is not defined or tool_call.id | length != 9 %}\
{{ raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{% endif %}\
, "id": "{{ tool_call.id }}"}{% if not loop.last %}, {% else %}]<|end|>{% endif %}{% endfor %}\
{% elif message.role == 'assistant' %} {{ message.content }}<|end|>{% elif message.role == 'tool' %}\
[TOOL_RESULTS] {"content": {{ message.content | tojson }}, "call_id": "{{ message.tool_call_id }}"}[/TOOL_RESULTS]\
{% else %}{{ raise_exception("Only user, assistant and tool roles are supported!") }}{% endif %}{% endfor %}"""

PLAIN = """{{ '<|begin|>' }}{% for message in messages %}<|begin|>{{ message.role }}
{{ message.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|begin|>assistant
{% endif %}"""

UNKNOWN = """{% for message in messages %}{{ message.role }}: {{ message.content }}{% for c in message.tool_calls %}\
<function={{ c.function.name }}>{% endfor %}<|end|>{% endfor %}"""
