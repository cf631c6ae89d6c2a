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

QWEN_CODER = """{% if tools %}<|begin|>system
# Tools
<tools>{% for tool in tools %}
<function>
<name>{{ tool.function.name }}</name>
<description>{{ tool.function.description }}</description>
{% for name, one in tool.function.parameters.properties | items %}<parameter>{{ name }}: {{ one | tojson }}</parameter>
{% endfor %}</function>{% endfor %}
</tools>
<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
</function>
</tool_call><|end|>
{% endif %}{% for message in messages %}{% if message.role == 'assistant' and message.tool_calls %}<|begin|>assistant\
{% if message.content and message.content | trim %}
{{ message.content | trim }}
{% endif %}{% for call in message.tool_calls %}{% set call = call.function %}
<tool_call>
<function={{ call.name }}>
{% for name, value in call.arguments | items %}<parameter={{ name }}>
{{ value | tojson | safe if value is mapping or (value is sequence and value is not string) else value | string }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|end|>
{% elif message.role == 'tool' %}<|begin|>user
<tool_response>
{{ message.content }}
</tool_response>
<|end|>
{% else %}<|begin|>{{ message.role }}
{{ message.content }}<|end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|begin|>assistant
{% endif %}"""

_V3_CALL = (
    "'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n```json\\n' + "
    "tool['function']['arguments'] + '\\n```<｜tool▁call▁end｜>'"
)
_V31_CALL = (
    "'<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>' + tool['function']['arguments'] + "
    "'<｜tool▁call▁end｜>'"
)

DEEPSEEK = """{% set ns = namespace(first=true, out=true) %}\
{% for message in messages %}{% if message['role'] == 'system' %}{{ message['content'] }}\
{% endif %}{% endfor %}{% for message in messages %}{% if message['role'] == 'user' %}\
{{ '<|begin|>User ' + message['content'] }}{% elif message['role'] == 'assistant' %}{% if message['tool_calls'] %}\
{% for tool in message['tool_calls'] %}{% if ns.first %}{{ '<|begin|>Assistant <｜tool▁calls▁begin｜>' + CALL }}\
{% set ns.first = false %}{% else %}{{ '\\n' + CALL }}{% endif %}{% endfor %}\
{{ '<｜tool▁calls▁end｜><|end|>' }}{% endif %}\
{% if message['content'] is not none %}{{ '<|begin|>Assistant ' + message['content'] + '<|end|>' }}{% endif %}\
{% elif message['role'] == 'tool' %}{% if ns.out %}{{ '<｜tool▁outputs▁begin｜>' }}{% set ns.out = false %}{% endif %}\
{{ '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}{% endif %}{% endfor %}\
{% if not ns.out %}{{ '<｜tool▁outputs▁end｜>' }}{% endif %}{% if add_generation_prompt and ns.out %}\
{{ '<|begin|>Assistant ' }}{% endif %}""".replace("CALL", _V3_CALL)
"""V3 and R1: arguments are text, a message with calls has no content, and tools are not told of."""

DEEPSEEK_31 = """{% for message in messages %}{% if message['role'] == 'tool' %}\
{{ '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}{% else %}\
<|begin|>{{ message['role'] + '\\n' }}\
{{ message['content'] or '' }}{% if message['tool_calls'] is defined and message['tool_calls'] is not none %}\
{{ '<｜tool▁calls▁begin｜>' }}{% for tool in message['tool_calls'] %}{{ CALL }}{% endfor %}{{ '<｜tool▁calls▁end｜>' }}\
{% endif %}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|begin|>assistant
{% endif %}""".replace("CALL", _V31_CALL)

GLM = """{% for message in messages %}{{ message.role }}: {{ message.content }}{% for c in message.tool_calls %}\
<tool_call>{{ c.function.name }}
<arg_key>a</arg_key></tool_call>{% endfor %}<|end|>{% endfor %}"""

PLAIN = """{{ '<|begin|>' }}{% for message in messages %}<|begin|>{{ message.role }}
{{ message.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|begin|>assistant
{% endif %}"""

UNKNOWN = """{% for message in messages %}{{ message.role }}: {{ message.content }}{% for c in message.tool_calls %}\
<function={{ c.function.name }}>{% endfor %}<|end|>{% endfor %}"""
