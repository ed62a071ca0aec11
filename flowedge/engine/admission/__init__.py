"""Which requests of a draft node are opened, and when: cache budgets, queue, priorities, waits."""
