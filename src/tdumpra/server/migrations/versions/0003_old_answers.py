"""Find answers that are no longer remembered."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the index."""
    op.create_index(op.f("ix_answers_created_at"), "answers", ["created_at"], unique=False)
