/* The processor that this process runs on. */
#ifndef SD_PROCESSOR_H
#define SD_PROCESSOR_H

/* Room for the name. */
#define SD_PROCESSOR_NAME 128

/* Maker, family, model and stepping, and what the processor calls itself: all processors of one kind have
 * one name. Of other processors than those of x86 the architecture alone. */
void sd_processor_name(char name[SD_PROCESSOR_NAME]);

#endif
