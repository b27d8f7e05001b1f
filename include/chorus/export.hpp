// What the shared library offers to programs; everything else stays inside it.
#pragma once

#define CHORUS_API [[gnu::visibility("default")]]
#define CHORUS_LOCAL [[gnu::visibility("hidden")]]  // inside a class that is offered
