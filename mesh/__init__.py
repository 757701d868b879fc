"""What any process needs to be a citizen of a service mesh; it knows nothing about notifications."""
