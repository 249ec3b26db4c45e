// Tells systemd that the process is ready (Type=notify).
#pragma once

namespace cadre {

// Does nothing unless the process was started by systemd, or another supervisor that sets
// NOTIFY_SOCKET. Thread-safe.
void NotifyReady();

}  // namespace cadre
