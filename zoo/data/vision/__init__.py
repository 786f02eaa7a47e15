"""What sources of images share: tables of files, decoding, streams, and augmentation."""
