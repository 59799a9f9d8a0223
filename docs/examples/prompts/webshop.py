# Prompts as `nestor import-prompts` reads them, with sentences of their own.
WEBSHOP_TEMPLATE_NO_HIS = """
You shop for: {task_description}
The page shows: {current_observation}
You can do: [
{available_actions}
]
Think first, inside <think> </think>, then write one action inside <action> </action>.
"""

WEBSHOP_TEMPLATE = """
You shop for: {task_description}
This is step {current_step}. After {step_count} steps, the last {history_length} were: {action_history}
The page shows: {current_observation}
You can do: [
{available_actions}
]
Think first, inside <think> </think>, then write one action inside <action> </action>.
"""
