"""How alembic runs our steps: on the connection that it is handed, in the transaction that is open there."""

from alembic import context

from tdumpra.server.tables import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
