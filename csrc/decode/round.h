/* One round of the open sequences of a session. */
#ifndef SD_ROUND_H
#define SD_ROUND_H

#include "session_state.h"

/* Run the round that session->round describes: its sequences, and how much each may draft. Its records are
 * appended to those of the call. */
sd_status sd_round_run(sd_session* session);

#endif
